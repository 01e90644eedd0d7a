// A selection as a dict and as HTML.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "moracle/oracle.h"

namespace moracle::python {

/// The keys of `moracle explain --json`.
nanobind::dict to_dict(const Selection& selection);
/// A table with one row per backend, for notebooks.
std::string to_html(const Selection& selection);

}  // namespace moracle::python
