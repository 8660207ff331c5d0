"""The SLO laboratory: workloads, load, figures of TTFT and TPOT against objectives."""
