#include "moracle/base.h"

#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "base/printable.h"
#include "base/text.h"

namespace moracle {

std::string Error::to_string() const {
  // Longer than every list of names in a message; shorter than a text that floods a terminal.
  constexpr size_t kMaxFieldBytes = 4000;
  std::string line;
  auto add = [&line](const std::string& field, const char* before, const char* lead = "") {
    if (field.empty()) return;
    line += (line.empty() ? "" : before) + (lead + printable(field, kMaxFieldBytes));
  };
  add(file, "");
  add(place, ": ");
  add(need, ": ", "needs ");
  add(fact, need.empty() ? ": " : "; ");
  return line;
}

void end_misused_result(const Error* error) {
  std::fprintf(stderr, "moracle: a caller read the %s\n",
               error == nullptr ? "error of a result that has none"
                                : ("value of a failed result: " + error->to_string()).c_str());
  std::abort();
}

namespace {
struct DTypeRow {
  std::string_view name;
  Block block;
};
// In enum order.
constexpr DTypeRow kDTypes[] = {
    {"f32", {1, 4}},        {"f16", {1, 2}},        {"bf16", {1, 2}},      {"f64", {1, 8}},
    {"i64", {1, 8}},        {"i32", {1, 4}},        {"i16", {1, 2}},       {"i8", {1, 1}},
    {"u8", {1, 1}},         {"i4", {2, 1}},         {"bool", {1, 1}},      {"f8_e4m3", {1, 1}},
    {"f8_e5m2", {1, 1}},    {"f8_e8m0", {1, 1}},    {"f4_e2m1", {2, 1}},   {"q4_0", {32, 18}},
    {"q4_1", {32, 20}},     {"q5_0", {32, 22}},     {"q5_1", {32, 24}},    {"q8_0", {32, 34}},
    {"q2_k", {256, 84}},    {"q3_k", {256, 110}},   {"q4_k", {256, 144}},  {"q5_k", {256, 176}},
    {"q6_k", {256, 210}},   {"iq2_xxs", {256, 66}}, {"iq2_xs", {256, 74}}, {"iq3_xxs", {256, 98}},
    {"iq1_s", {256, 50}},   {"iq4_nl", {32, 18}},   {"iq3_s", {256, 110}}, {"iq2_s", {256, 82}},
    {"iq4_xs", {256, 136}}, {"iq1_m", {256, 56}},   {"mxfp4", {32, 17}},   {"nvfp4", {64, 36}}};
static_assert(std::size(kDTypes) == kNumDTypes);
}  // namespace

std::string_view name(DType type) {
  return kDTypes[static_cast<int>(type)].name;
}
Block block(DType type) {
  return kDTypes[static_cast<int>(type)].block;
}
int bits(DType type) {
  const Block unit = block(type);
  return (unit.bytes * 8 + unit.elements - 1) / unit.elements;
}
int64_t row_bytes(DType type, int64_t elements) {
  const Block unit = block(type);
  return (elements + unit.elements - 1) / unit.elements * unit.bytes;
}

int64_t TensorView::num_elements() const {
  int64_t count = 1;
  for (int64_t d : shape) count *= d;
  return count;
}

size_t TensorView::num_bytes() const {
  return static_cast<size_t>(row_bytes(dtype, num_elements()));
}

std::string to_string(const TensorView& view) {
  return str(name(view.dtype), " [", join(view.shape), "]");
}

Matrix Matrix::slice(int64_t first, int64_t count) const {
  Matrix sliced = *this;
  sliced.data = static_cast<std::byte*>(data) + first * stride * bits(dtype) / 8;
  sliced.rows = count;
  return sliced;
}

}  // namespace moracle
