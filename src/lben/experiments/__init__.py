"""The paper's tables and figures as data: each experiment runs, resumes and writes what a report shows."""
