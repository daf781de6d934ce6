"""Continuous-batching scheduler: admission, fairness between callers, batch selection and dispatch to a worker."""
