"""Spectra of the separable continuous models, exact: R^D (`real_space`) and box windows (`interval`, `window`)."""
