"""The fine-tune jobs of the scripted daemon: a small queue whose jobs run when somebody watches.

The name of a job says what becomes of it: "bad" fails, "stuck" runs until it is cancelled or paused,
every other one is done after STEPS steps."""
import threading

STEPS = 20


class FakeJobs:
    def __init__(self):
        self.jobs, self.logs, self.changed = {}, {}, threading.Condition()

    def submit(self, params):
        if "data" not in params:
            return None, (-32602, "invalid_params", {"field": "data"})
        once = params.get("once")
        for job in self.jobs.values():
            if once and job["once"] == once and job["state"] in ("queued", "running", "paused"):
                if job["state"] == "paused":
                    self.move(job, "queued")
                return self.public(job, existing=True), None
        number = len(self.jobs) + 1
        job = {"job": number, "name": params.get("name", "job"), "state": "queued", "step": 0,
               "steps": 0, "loss": None, "eval_loss": None, "error": None, "result": None,
               "created": 1e9, "started": None, "ended": None, "once": once, "spec": params}
        self.jobs[number], self.logs[number] = job, []
        self.log(number, event="state", state="queued")
        return self.public(job, existing=False), None

    @staticmethod
    def public(job, **more):
        return dict({k: v for k, v in job.items() if k not in ("once", "spec")}, **more)

    def log(self, number, **event):
        cursor = 1 + sum(len(log) for log in self.logs.values())
        self.logs[number].append(dict(event, cursor=cursor, time=1e9 + cursor))

    def find(self, named):
        if isinstance(named, int):
            return self.jobs.get(named)
        return next((j for j in reversed(list(self.jobs.values())) if j["name"] == named), None)

    def move(self, job, state, **more):
        with self.changed:
            job.update(more, state=state)
            self.log(job["job"], event="state", state=state)
            self.changed.notify_all()

    def run(self, job):
        """All of its life at once."""
        if job["state"] != "queued":
            return
        self.move(job, "running", steps=STEPS)
        for step in range(1, STEPS + 1):
            job.update(step=step, loss=4.0 / step)
            self.log(job["job"], event="step", step=step, steps=STEPS, loss=4.0 / step, lr=1e-4,
                     grad_norm=1.0, tokens=64, tokens_per_s=345.0, eta_s=182.0)
            if step % 10 == 0:
                job["eval_loss"] = 5.0 / step
                self.log(job["job"], event="eval", step=step, eval_loss=5.0 / step)
            if job["name"] in ("bad", "stuck") and step == 3:
                break
        if job["name"] == "bad":
            self.move(job, "failed", error="tickets.jsonl: line 7 is\nno JSON")
        elif job["name"] != "stuck":
            self.move(job, "done", result="/state/adapters/" + job["name"])

    def watch(self, job, notify, gone):
        """Notifies of all events until the job has ended, or gone() says that nobody listens."""
        self.run(job)
        sent = 0
        while True:
            with self.changed:
                events = self.logs[job["job"]][sent:]
                ended = job["state"] in ("done", "failed", "cancelled")
                if not events and not ended:
                    self.changed.wait(0.05)
            for event in events:
                notify(dict(event, job=job["job"]))
            sent += len(events)
            if (ended and not events) or gone():
                return self.public(job)

    def change(self, job, method):
        state = job["state"]
        if method == "delete":
            if state not in ("done", "failed", "cancelled"):
                return None, (-32009, "conflict", {"state": state})
            del self.jobs[job["job"]]
            return {"job": job["job"], "deleted": True}, None
        to = {"cancel": "cancelled", "pause": "paused", "resume": "queued"}[method]
        legal = {"cancel": ("queued", "running", "paused"), "pause": ("queued", "running"),
                 "resume": ("paused",)}[method]
        if state not in legal:
            return None, (-32009, "conflict", {"state": state})
        self.move(job, to)
        return self.public(job), None
