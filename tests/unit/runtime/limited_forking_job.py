import limited_job

from ramify.runtime.limited_process import serve

if __name__ == "__main__":
    serve(limited_job.answer, forks=True, warm_up=limited_job.warm_up)
