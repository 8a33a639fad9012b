"""Suite `rehearsal`: what is meant for TPUs, run or compiled without one."""
