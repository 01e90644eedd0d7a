#include "checkpoint/gguf/ggml_type.h"

#include <optional>
#include <string_view>

#include "base/text.h"

namespace moracle {
namespace ggml_type {
namespace {

enum class State : uint8_t { kRead, kNotRead, kRemoved };

struct Row {
  uint32_t number;
  std::string_view name;
  State state = State::kRead;
  DType type = DType::kF32;
};

constexpr Row kRows[] = {
    {0, "F32", State::kRead, DType::kF32},
    {1, "F16", State::kRead, DType::kF16},
    {2, "Q4_0", State::kRead, DType::kQ4_0},
    {3, "Q4_1", State::kRead, DType::kQ4_1},
    {4, "Q4_2", State::kRemoved},
    {5, "Q4_3", State::kRemoved},
    {6, "Q5_0", State::kRead, DType::kQ5_0},
    {7, "Q5_1", State::kRead, DType::kQ5_1},
    {8, "Q8_0", State::kRead, DType::kQ8_0},
    {9, "Q8_1", State::kNotRead},
    {10, "Q2_K", State::kRead, DType::kQ2K},
    {11, "Q3_K", State::kRead, DType::kQ3K},
    {12, "Q4_K", State::kRead, DType::kQ4K},
    {13, "Q5_K", State::kRead, DType::kQ5K},
    {14, "Q6_K", State::kRead, DType::kQ6K},
    {15, "Q8_K", State::kNotRead},
    {16, "IQ2_XXS", State::kRead, DType::kIQ2XXS},
    {17, "IQ2_XS", State::kRead, DType::kIQ2XS},
    {18, "IQ3_XXS", State::kRead, DType::kIQ3XXS},
    {19, "IQ1_S", State::kRead, DType::kIQ1S},
    {20, "IQ4_NL", State::kRead, DType::kIQ4NL},
    {21, "IQ3_S", State::kRead, DType::kIQ3S},
    {22, "IQ2_S", State::kRead, DType::kIQ2S},
    {23, "IQ4_XS", State::kRead, DType::kIQ4XS},
    {24, "I8", State::kRead, DType::kI8},
    {25, "I16", State::kRead, DType::kI16},
    {26, "I32", State::kRead, DType::kI32},
    {27, "I64", State::kRead, DType::kI64},
    {28, "F64", State::kRead, DType::kF64},
    {29, "IQ1_M", State::kRead, DType::kIQ1M},
    {30, "BF16", State::kRead, DType::kBF16},
    {31, "Q4_0_4_4", State::kRemoved},
    {32, "Q4_0_4_8", State::kRemoved},
    {33, "Q4_0_8_8", State::kRemoved},
    {34, "TQ1_0", State::kNotRead},
    {35, "TQ2_0", State::kNotRead},
    {36, "IQ4_NL_4_4", State::kRemoved},
    {37, "IQ4_NL_4_8", State::kRemoved},
    {38, "IQ4_NL_8_8", State::kRemoved},
    {39, "MXFP4", State::kRead, DType::kMxfp4Block},
    {40, "NVFP4", State::kRead, DType::kNvfp4Block},
    {41, "Q1_0", State::kNotRead},
};

}  // namespace
}  // namespace ggml_type

Result<DType> parse_ggml_type(uint32_t number, const std::string& file, const std::string& place) {
  using ggml_type::State;
  std::string known;
  for (const ggml_type::Row& row : ggml_type::kRows) {
    if (row.state == State::kRead) known += str(known.empty() ? "" : ", ", row.name);
  }
  for (const ggml_type::Row& row : ggml_type::kRows) {
    if (row.number != number) continue;
    if (row.state == State::kRead) return row.type;
    if (row.state == State::kNotRead)
      return Error{ErrorKind::kUnsupported, file, place, "one of the types " + known,
                   str("it has type ", number, ", ", row.name)};
    return Error{ErrorKind::kBadFile, file, place,
                 "a type that GGUF still has; convert or quantize the model again",
                 str("it has type ", number, ", ", row.name, ", which GGUF has removed")};
  }
  return Error{ErrorKind::kBadFile, file, place, "one of the types " + known,
               str("it has the unknown type ", number)};
}

Result<uint32_t> ggml_number(DType type) {
  for (const ggml_type::Row& row : ggml_type::kRows) {
    if (row.state == ggml_type::State::kRead && row.type == type) return row.number;
  }
  return Error{ErrorKind::kUnsupported, "", "", "a type of GGUF", str("it is ", name(type))};
}

}  // namespace moracle
