// Reads a file with a JSON object.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "moracle/base.h"

namespace moracle {

/// Errors: those of read_small_file and check_json_text; kBadFile for anything but an object.
Result<nlohmann::json> read_json_file(const std::string& path);

}  // namespace moracle
