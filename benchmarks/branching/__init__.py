"""What each branching rule does in the quick start's world: does entropy act?"""
