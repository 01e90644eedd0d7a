// The schemas that the grammar engine can hold MiniMax-M3's arguments to.
#pragma once

#include <string>

#include "moracle/base.h"

namespace moracle::serve {

/// The grammar engine's style of MiniMax-M3.
inline constexpr std::string_view kMiniMaxM3Style = "minimax_m3_xml";

/// Checks a schema of lower_schema(). Errors: a value without a type; an object with members that
/// it does not list; a name that is no name of a tag. `place` names the schema.
Status check_minimax_m3(const std::string& lowered, const std::string& place);

}  // namespace moracle::serve
