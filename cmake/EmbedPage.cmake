# Writes OUT: FILE as a string. Run by the build: cmake -DFILE= -DOUT= -P.
file(READ ${FILE} content)
file(WRITE ${OUT} "// Written by cmake/EmbedPage.cmake.
#pragma once

#include <string_view>

namespace moracle::serve {

inline constexpr std::string_view kPage = R\"page(${content})page\";

}  // namespace moracle::serve
")
