"""The paper's tables and figures as data: each runs, resumes and writes what a report shows; no method is made here."""
