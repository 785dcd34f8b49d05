#include "daemon/results.h"

#include "base/file.h"
#include "base/log.h"
#include "daemon/adapters_private.h"
#include "daemon/job_paths.h"

#include <stdlib.h>
#include <string.h>

static bool same_place(const char *path, const char *real) {
    char *other = path ? realpath(path, NULL) : NULL;
    bool same = other && strcmp(other, real) == 0;
    free(other);
    return same;
}

/* The adapter's name (the caller's to free) or "model"; NULL: nobody uses it. */
static char *user_of(struct training *t, const char *real) {
    struct adapters *all = t->server->adapters;
    char *model = training_model_path(t);
    char *user = same_place(model, real) ? strdup("the model") : NULL;
    free(model);
    pthread_mutex_lock(&all->mutex);
    for (int i = 0; i < SHARD_ADAPTERS && !user; i++)
        if (all->slots[i] && same_place(all->slots[i]->path, real)) user = strdup(all->slots[i]->name);
    pthread_mutex_unlock(&all->mutex);
    return user;
}

/* Two jobs that learnt the same share a directory. The other's number; 0: there is none. */
static int64_t same_result(const struct job *jobs, size_t n, const struct job *job) {
    for (size_t i = 0; i < n; i++)
        if (jobs[i].id != job->id && jobs[i].result && strcmp(jobs[i].result, job->result) == 0)
            return jobs[i].id;
    return 0;
}

static int remove_unused(struct training *t, const char *path, struct error *e) {
    char *real;
    int rc = job_out_path(&real, t->state_dir, path, e); /* nothing outside, nor of the daemon's own */
    if (rc != 0) return rc;
    char *user = user_of(t, real);
    if (user) rc = error_set(e, ERR_CONFLICT, "%s is in use (%s): unload it first", path, user);
    else rc = dir_remove(real, e);
    free(user);
    free(real);
    return rc;
}

int results_remove(struct training *t, const struct job *job, struct error *e) {
    struct job *jobs;
    size_t n;
    int rc = jobs_list(t->jobs, &jobs, &n, e);
    if (rc != 0) return rc;
    int64_t other = same_result(jobs, n, job);
    jobs_list_free(jobs, n);
    if (other)
        return error_set(e, ERR_CONFLICT, "%s is the result of job %lld, too: delete the jobs without it",
                         job->result, (long long)other);
    return remove_unused(t, job->result, e);
}

void results_prune(struct training *t, const char *name) {
    int64_t keep = t->server->config->keep_results, seen = 0;
    struct job *jobs = NULL;
    struct error e;
    size_t n = 0;
    if (keep == 0 || jobs_list(t->jobs, &jobs, &n, &e) != 0) return;
    for (size_t i = 0; i < n; i++) {
        const struct job *job = &jobs[i];
        if (job->state != JOB_DONE || !job->result || strcmp(job->name, name) != 0) continue;
        if (!path_is_dir(job->result) || same_result(jobs, i, job) || ++seen <= keep) continue;
        int rc = remove_unused(t, job->result, &e);
        if (rc == 0) log_info("removed %s: keep_results = %lld", job->result, (long long)keep);
        else if (e.kind != ERR_CONFLICT) log_warn("%s stays: %s", job->result, e.message);
    }
    jobs_list_free(jobs, n);
}
