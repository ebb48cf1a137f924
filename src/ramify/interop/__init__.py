"""Parts for other trainers' programs: our advantages in verl and prime-rl, and tasks of verifiers as an environment of ours."""
