// The .cl files of this folder, as the build embeds them.
#pragma once

#include <string>
#include <string_view>

namespace moracle::opencl {

/// The text of a file, such as "ops/rows.cl"; empty if there is none.
std::string_view source(std::string_view file);

/// The text with every line `#include "file"` replaced by that file's text, once each.
std::string with_includes(std::string_view file);

/// The names of all files, for tests and for tools that compile them.
std::string_view source_name(size_t index);  ///< empty past the last

}  // namespace moracle::opencl
