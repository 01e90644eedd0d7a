// What moracle-docs makes from the library's own tables, so that docs/ cannot say anything else.
#pragma once

#include <map>
#include <string>

namespace moracle {
struct Layout;
}

namespace moracle::docs {

/// Schemes x backends; below it, which rows a plain build does not have.
std::string support_matrix();
/// Features of layers x backends.
std::string feature_matrix();
/// Every row of the table: name, device, layout, summary.
std::string backend_rows();

/// Every model family: its models, whether they run whole, notes.
std::string family_rows();

/// Who uses a layout, and its pictures.
std::string layout_part(const Layout& layout);
/// Every picture of every layout: file name -> SVG. Names begin with "layout-".
std::map<std::string, std::string> layout_pictures();

}  // namespace moracle::docs
