"""Problems in, scored trees out: what training, evaluation and `ramify rollout` share."""
