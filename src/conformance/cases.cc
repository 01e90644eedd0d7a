// The list of cases: shapes, schemes, spreads and variants by name.
#include <algorithm>
#include <charconv>

#include "base/text.h"
#include "conformance/conformance.h"
#include "oracle/backend.h"

namespace moracle::conformance {

std::string name(const Shape& s) {
  return str(s.num_experts, "x", s.hidden_size, "x", s.intermediate_size, "x", s.top_k);
}

Result<Shape> parse_shape(std::string_view text) {
  Shape shape{};
  int64_t* const fields[] = {&shape.num_experts, &shape.hidden_size, &shape.intermediate_size,
                             &shape.top_k};
  const char* at = text.data();
  const char* const end = at + text.size();
  bool good = true;
  for (int64_t* field : fields) {
    if (field != fields[0]) good = good && at != end && *at++ == 'x';
    const auto [next, error] = good ? std::from_chars(at, end, *field)
                                    : std::from_chars_result{at, std::errc::invalid_argument};
    good = good && error == std::errc();
    at = next;
  }
  const std::string fact = str("it is '", text, "'");
  if (!good || at != end) {
    return Error{ErrorKind::kInvalidArgument, "", "shape",
                 "experts x hidden size x intermediate size x top_k, such as 8x64x32x2", fact};
  }
  LayerSpec layer{.num_experts = shape.num_experts,
                  .hidden_size = shape.hidden_size,
                  .intermediate_size = shape.intermediate_size,
                  .top_k = shape.top_k};
  const Status valid = check(layer);
  if (valid) return shape;
  return Error{ErrorKind::kInvalidArgument, "", "shape",
               str(valid.error().place, ": ", valid.error().need), fact};
}

std::string_view name(Spread spread) {
  constexpr std::string_view kNames[] = {"uniform", "one-expert", "holes"};
  return kNames[static_cast<int>(spread)];
}

std::string reproducer(const Case& c) {
  return str("moracle check --backend ", c.backend, " --scheme ", name(c.scheme), " --shape ",
             name(c.shape), " --tokens ", c.num_tokens, " --spread ", name(c.spread),
             c.variant == "plain" ? "" : str(" --variant ", c.variant));
}

std::vector<Scheme> schemes() {
  auto weight_only = [](QuantKey key, bool symmetric = true) {
    key.symmetric = symmetric;
    return Scheme{key, {}};
  };
  auto with_zero_points = [](Scheme scheme) {
    scheme.weight.symmetric = false;
    return scheme;
  };
  auto with_minimums = [](Scheme scheme) {
    scheme.weight.minimums = true;
    return scheme;
  };
  return {
      {kBF16Weight, {}},
      {kF16Weight, {}},
      {kF32Weight, {}},
      {kInt8StaticChannelSym, kInt8DynamicTokenSym},
      {kInt8StaticChannelSym, kInt8StaticTensorSym},
      weight_only(int4_static_group(128)),
      weight_only(int4_static_group(32)),
      weight_only(int4_static_group(GroupShape::kAll)),
      weight_only(int4_static_group(64), false),
      weight_only(int4_static_group(16), false),
      weight_only(int8_static_group(128)),
      weight_only(int8_static_group(GroupShape::kAll)),
      weight_only(int8_static_group(64), false),
      {kFp8StaticTensorSym, kFp8DynamicTokenSym},
      {kFp8StaticTensorSym, kFp8StaticTensorSym},
      {kFp8StaticChannelSym, kFp8DynamicTokenSym},
      {kFp8Static128BlockSym, kFp8Dynamic128Sym},
      {{DType::kF8E4M3, per_group(128)}, kFp8DynamicTokenSym},  // 4-bit weights that are folded
      {fp8_static_block(16, 32), fp8_dynamic_group(32)},
      weight_only(kFp8StaticChannelSym),
      weight_only(kFp8Static128BlockSym),
      {kMxfp8Static, kMxfp8Dynamic},
      weight_only(kMxfp8Static),
      weight_only(kMxfp4Static),
      weight_only(kNvfp4Static),
      // As compressed-tensors stores W4A8, and on request.
      {int4_static_group(128), kFp8DynamicTokenSym},
      with_zero_points({int8_static_group(64), kFp8DynamicTokenSym}),
      {int4_static_group(128), kInt8DynamicTokenSym},
      {int4_static_group(32), kInt8DynamicTokenSym},
      with_zero_points({int4_static_group(64), kInt8DynamicTokenSym}),
      {kMxfp4Static, kInt8DynamicTokenSym},
      {kNvfp4Static, kInt8DynamicTokenSym},
      {kMxfp4Static, kFp8DynamicTokenSym},
      {kNvfp4Static, kFp8DynamicTokenSym},
      // As GGUF stores Q8_0, Q4_1, Q4_K, Q5_K, Q6_K, Q5_0, IQ4_XS, IQ3_XXS, IQ2_S, Q3_K and Q2_K;
      // Q4_K stacked with Q6_K.
      weight_only(with_scales(int8_static_group(32), DType::kF16)),
      with_minimums(with_zero_points({with_scales(int4_static_group(32), DType::kF16), {}})),
      with_minimums(with_zero_points({with_scales(int4_static_group(32), DType::kI8), {}})),
      with_minimums(
          {with_codes(with_scales(int8_static_group(32), DType::kI8), CodeSet::kUnsigned5), {}}),
      weight_only(with_codes(with_scales(int8_static_group(16), DType::kI8), CodeSet::kSigned6)),
      weight_only(with_codes(with_scales(int8_static_group(32), DType::kF16), CodeSet::kSigned5)),
      weight_only(with_codes(with_scales(int8_static_group(32), DType::kI8), CodeSet::kIq4)),
      weight_only(with_codes(with_scales(int8_static_group(32), DType::kI8), CodeSet::kIq3Xxs)),
      {with_codes(with_scales(int8_static_group(16), DType::kI8), CodeSet::kIq2),
       kInt8DynamicTokenSym},
      {with_codes(with_scales(int8_static_group(16), DType::kI8), CodeSet::kSigned6),
       kInt8DynamicTokenSym},
      weight_only(with_scales(int4_static_group(16), DType::kI8)),
      with_minimums({with_scales(int4_static_group(16), DType::kI8), {}}),
      with_minimums({with_scales(int4_static_group(16), DType::kI8), kInt8DynamicTokenSym}),
      with_minimums({int8_static_group(16), {}}),
      with_minimums(
          with_zero_points({with_scales(int4_static_group(32), DType::kI8), kInt8DynamicTokenSym})),
      with_minimums({int8_static_group(32), kFp8DynamicTokenSym})};
}

std::vector<Shape> shapes() {
  // One panel; less than one; around tiles of 16 and 4; odd everywhere; groups that do not divide;
  // top_k = 1 and = num_experts; the shape of the model in the box.
  return {{1, 16, 16, 1},  {2, 15, 8, 1},    {4, 64, 32, 2},  {3, 33, 17, 2},
          {8, 130, 34, 8}, {2, 200, 136, 1}, {5, 129, 47, 3}, {16, 256, 128, 4}};
}

std::vector<Shape> shapes_of_odd_blocks(const Scheme& scheme) {
  if (scheme.weight.dtype != DType::kF8E4M3 || scheme.weight.group.cols != 128) return {};
  return {{4, 192, 320, 2}, {3, 288, 96, 2}};
}

namespace {

// Shapes for a variant: remainders in every direction, and the shapes that it needs.
std::vector<Shape> shapes_for(const Variant& variant) {
  if (variant.name == "bias") return shapes();
  if (variant.name == "input-weight") return {{2, 15, 8, 1}, {5, 200, 136, 1}};
  if (variant.name.starts_with("ep-")) return {{5, 129, 47, 3}, {8, 64, 32, 4}};
  return {{3, 33, 17, 2}, {5, 129, 47, 3}};
}

}  // namespace

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Backend& backend : backends()) {
    if (!backend.built()) continue;
    for (const Scheme& scheme : schemes()) {
      for (const Shape& shape : shapes()) {
        for (int64_t tokens : {0, 1, 3, 4, 5, 17})
          all.push_back({backend.name, scheme, shape, tokens});
        for (Spread spread : {Spread::kOneExpert, Spread::kHoles}) {
          all.push_back({backend.name, scheme, shape, 9, spread});
        }
      }
      // Many rows per expert run in other kernels.
      for (const Shape& shape : {Shape{4, 64, 32, 2}, Shape{5, 129, 47, 3}})
        all.push_back({backend.name, scheme, shape, 100});
      for (const Shape& shape : shapes_of_odd_blocks(scheme)) {
        for (int64_t tokens : {1, 4, 17, 100}) all.push_back({backend.name, scheme, shape, tokens});
      }
      for (const Variant& variant : variants().subspan(1)) {
        for (const Shape& shape : shapes_for(variant))
          all.push_back({backend.name, scheme, shape, 4, Spread::kUniform, variant.name});
      }
    }
  }
  return all;
}

}  // namespace moracle::conformance
