// What quantized numbers mean, apart from who wrote them and how a kernel stores them.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moracle/base.h"

namespace moracle {

/// How many elements share one scale: `rows` x `cols` of a [rows, K] matrix; kAll is the whole
/// extent. Weights are [N, K] (one row per output), activations [tokens, K]: a channel of a weight
/// and a token of an activation are both one row.
struct GroupShape {
  static constexpr int64_t kAll = -1;
  int64_t rows = kAll;
  int64_t cols = kAll;
  constexpr auto operator<=>(const GroupShape&) const = default;
};

/// The meaning of one operand's numbers. A float dtype means: not quantized.
struct QuantKey {
  DType dtype = DType::kBF16;
  GroupShape group{};
  bool dynamic = false;             ///< scales computed at run time from the data
  bool symmetric = true;            ///< no zero points
  DType scale_dtype = DType::kF32;  ///< kF8E8M0: powers of two; kF32: any value

  constexpr bool operator==(const QuantKey&) const = default;
  constexpr bool quantized() const {
    return dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16;
  }
};

inline constexpr GroupShape kPerRow{1, GroupShape::kAll};
constexpr GroupShape per_group(int64_t size) {
  return {1, size};
}

// Values as codes times a scale, in the field's names. Integer codes are two's complement.
inline constexpr QuantKey kF32Weight{DType::kF32};
inline constexpr QuantKey kF16Weight{DType::kF16};
inline constexpr QuantKey kBF16Weight{DType::kBF16};
inline constexpr QuantKey kInt8StaticChannelSym{DType::kI8, kPerRow};
inline constexpr QuantKey kInt8DynamicTokenSym{DType::kI8, kPerRow, true};
inline constexpr QuantKey kFp8StaticTensorSym{DType::kF8E4M3, GroupShape{}};
inline constexpr QuantKey kFp8StaticChannelSym{DType::kF8E4M3, kPerRow};
inline constexpr QuantKey kFp8DynamicTokenSym{DType::kF8E4M3, kPerRow, true};
constexpr QuantKey fp8_static_block(int64_t rows, int64_t cols) {
  return {DType::kF8E4M3, GroupShape{rows, cols}};
}
inline constexpr QuantKey kFp8Static128BlockSym = fp8_static_block(128, 128);
constexpr QuantKey fp8_dynamic_group(int64_t group) {
  return {DType::kF8E4M3, per_group(group), true};
}
inline constexpr QuantKey kFp8Dynamic128Sym = fp8_dynamic_group(128);
/// OCP microscaling: 32 values share a power of two.
inline constexpr QuantKey kMxfp8Static{DType::kF8E4M3, per_group(32), false, true, DType::kF8E8M0};
inline constexpr QuantKey kMxfp8Dynamic{DType::kF8E4M3, per_group(32), true, true, DType::kF8E8M0};
inline constexpr QuantKey kMxfp4Static{DType::kF4E2M1, per_group(32), false, true, DType::kF8E8M0};
/// Group scales along K; `group` = GroupShape::kAll: one scale per channel.
constexpr QuantKey int4_static_group(int64_t group) {
  return {DType::kI4, per_group(group)};
}
constexpr QuantKey int8_static_group(int64_t group) {
  return {DType::kI8, per_group(group)};
}
inline constexpr QuantKey kInt4StaticGroupScale = int4_static_group(128);
inline constexpr QuantKey kInt8StaticGroupScale = int8_static_group(128);

/// Weight key x activation key: what a layer computes, whoever wrote it. No activation key: the
/// activations stay floating point ("weight-only").
struct Scheme {
  QuantKey weight;
  std::optional<QuantKey> activation;
  constexpr bool operator==(const Scheme&) const = default;
};

/// "bf16", "int8-w8a8", "int4-w4a16-g128", "int8-w8a16-channel", "fp8-w8a8-block128x128",
/// "mxfp8-w8a8", "mxfp4-w4a16"; "int4-w4afp8-g128" for fp8 activations beside integer weights;
/// "-asym" for zero points, "-static" for activation scales stored in the file.
std::string name(const Scheme& scheme);
/// For people: "int8 weights per channel, int8 activations per token, dynamic".
std::string describe(const Scheme& scheme);
/// The inverse of name(); "w8a8-int8" and the like are understood too. Errors list the grammar.
Result<Scheme> parse_scheme(std::string_view text);

/// A scheme to which floats can be quantized, by the name that users know from elsewhere.
struct OnlineScheme {
  std::string_view name;  ///< "fp8-per-block"; where there is none, the scheme's own
  Scheme scheme;
};
std::span<const OnlineScheme> online_schemes();
/// By either name: "fp8-per-block" and "fp8-w8a8-block128x128" are the same. Errors list them all.
Result<Scheme> parse_online_scheme(std::string_view text);

/// One matrix [n, k] in the canonical form that every producer's reader makes and every layout
/// reads: row-major codes, packed from the low bits along k, each row starting on a byte; scales in
/// f32.
///
///   value(r, c) = (code(r, c) - zero_point(r, g)) * scale(r, g)
///   g = group_index[c], or c / group.cols
///
/// where scales and zero points are [scale_rows, scale_cols] and row r uses row r / group.rows. A
/// scale of a whole tensor appears as one per row (`key.group` = kPerRow): tensors with different
/// scales can then be stacked, and it is the same number.
struct CanonicalMatrix {
  CanonicalMatrix() = default;
  CanonicalMatrix(CanonicalMatrix&&) = default;
  CanonicalMatrix& operator=(CanonicalMatrix&&) = default;

  int64_t n = 0;
  int64_t k = 0;
  QuantKey key;
  std::span<const std::byte> codes;    ///< n * row_bytes(); in `storage`, or in `memory`
  std::vector<std::byte> storage;      ///< the codes, where they had to be made
  std::shared_ptr<const void> memory;  ///< keeps codes alive that a file holds in this form
  std::vector<float> scales;           ///< empty for float dtypes
  std::vector<int8_t> zero_points;     ///< as scales; empty: symmetric
  std::vector<int32_t> group_index;    ///< [k]; empty: groups lie one after another
  std::vector<float> bias;             ///< [n]; empty: none

  int64_t row_bytes() const { return (k * bits(key.dtype) + 7) / 8; }
  int64_t scale_rows() const;
  int64_t scale_cols() const;
  /// Columns per scale; k where one scale serves the whole row.
  int64_t group_cols() const { return key.group.cols == GroupShape::kAll ? k : key.group.cols; }
};

}  // namespace moracle
