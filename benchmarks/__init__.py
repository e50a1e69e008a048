"""Measurements of opslog, each beside the cost of the same work without it.

    python -m benchmarks [--small] [--rounds N] [--only TEXT …] [--json FILE] [--page FILE] [--check [FILE]]

Every workload runs for opslog, for a *floor* (the bare system calls and decoding on the same bytes: nothing can be
faster and keep the same promise) and for *peers*. All contenders of a workload take turns within each round, so that
other work on the machine affects all of them; a ratio is the median of the ratios within a round. This is opslog's
own benchmark: it measures the uses that opslog is made for, on small documents.

`python -m benchmarks.s3` does likewise for stores on S3.

A contender is a function decorated with `contender`, in `writing`, `transactions`, `reading`, `opening`, `tails` or
`maintenance`; a new workload is a new name in that decorator. A peer is a class in `peers`, which `contend` registers
for the workloads that need no more than its few calls. `goals` compares the results with opslog's goals;
`page` writes all of it into docs/benchmarks.md.
"""
