// The parts that moracle-docs generates from the library's own tables, so that docs/ and the
// library agree.
#pragma once

#include <map>
#include <string>

namespace moracle {
struct Layout;
}

namespace moracle::docs {

/// Schemes x backends, and below it the rows that a plain build lacks.
std::string support_matrix();
/// Features of layers x backends.
std::string feature_matrix();
/// Every row of the table: name, device, layout, summary.
std::string backend_rows();

/// Every model family: its models, whether they run whole, notes.
std::string family_rows();

/// The backends that use a layout, and its pictures.
std::string layout_part(const Layout& layout);
/// Every picture of every layout: file name -> SVG. Names begin with "layout-".
std::map<std::string, std::string> layout_pictures();

}  // namespace moracle::docs
