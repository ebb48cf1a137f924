"""Registers our estimator when verl imports this module: `VERL_USE_EXTERNAL_MODULES=ramify.interop.verl_plugin`."""

from ramify.interop.verl import register

register()
