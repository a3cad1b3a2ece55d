"""W and I - W as linear maps: product, transpose, resolvent, m, L and c; how W came about is not known here."""
