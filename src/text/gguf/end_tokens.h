// Finds the tokens that end an answer by their texts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moracle {

/// The ids of `named`, and of all tokens whose text ends an answer in some published model, as
/// llama.cpp has it. Ascending, each once.
std::vector<int32_t> end_tokens(const std::vector<std::string>& texts, std::vector<int32_t> named);

}  // namespace moracle
