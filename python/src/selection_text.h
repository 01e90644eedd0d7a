// Formats a selection as a dict and as HTML.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "moracle/oracle.h"

namespace moracle::python {

/// A dict with the keys of `moracle explain --json`.
nanobind::dict to_dict(const Selection& selection);
/// An HTML table with one row per backend, for notebooks.
std::string to_html(const Selection& selection);

}  // namespace moracle::python
