"""Parts for other trainers' programs: our advantages in verl, and tasks of verifiers as an environment of ours."""
