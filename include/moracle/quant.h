// The meaning of quantized numbers, independent of the producer and of the kernel's layout.
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

namespace moracle MORACLE_API {

/// The block of elements that share one scale: `rows` x `cols` of a [rows, K] matrix. kAll means
/// the whole extent. Weights are [N, K] with one row per output channel. Activations are [tokens,
/// K] with one row per token.
struct GroupShape {
  static constexpr int64_t kAll = -1;
  int64_t rows = kAll;
  int64_t cols = kAll;
  constexpr auto operator<=>(const GroupShape&) const = default;
};

/// The int8 codes that occur. Layouts may store those of a small set in fewer bits.
enum class CodeSet : uint8_t {
  kAny,
  kSigned6,    ///< -32 to 31: Q6_K
  kSigned5,    ///< -16 to 15: Q5_0
  kUnsigned5,  ///< 0 to 31: Q5_K, Q5_1
  kIq4,        ///< 16 values from -127 to 113: IQ4_NL, IQ4_XS
  kIq3S,       ///< odd numbers from -15 to 15: IQ3_S
  kIq3Xxs,     ///< 8 values from 4 to 62, and their negatives: IQ3_XXS
  kIq2,        ///< 8, 25, 43, and their negatives: IQ2_XXS, IQ2_XS, IQ2_S
  kIq1,        ///< 1, 7, 9, and their negatives: IQ1_S, IQ1_M
};

/// The number format of one operand. A float dtype means: not quantized.
struct QuantKey {
  DType dtype = DType::kBF16;
  GroupShape group{};
  bool dynamic = false;   ///< scales are computed at run time from the data
  bool symmetric = true;  ///< no zero points
  /// kF8E8M0: the scales are powers of two; kF16: f16 numbers; kI8: integers times the factor of
  /// kFactorCols columns (see CanonicalMatrix), as in k-quants; kF32: any value.
  DType scale_dtype = DType::kF32;
  bool minimums = false;  ///< each group has an f32 that is subtracted from its values
  CodeSet codes = CodeSet::kAny;

  constexpr bool operator==(const QuantKey&) const = default;
  constexpr bool quantized() const {
    return dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16;
  }
};

inline constexpr GroupShape kPerRow{1, GroupShape::kAll};
constexpr GroupShape per_group(int64_t size) {
  return {1, size};
}

// Common keys under the field's names. A value is code * scale. Integer codes are two's complement.
inline constexpr QuantKey kF32Weight{DType::kF32};
inline constexpr QuantKey kF16Weight{DType::kF16};
inline constexpr QuantKey kBF16Weight{DType::kBF16};
inline constexpr QuantKey kInt8StaticChannelSym{DType::kI8, kPerRow};
inline constexpr QuantKey kInt8DynamicTokenSym{DType::kI8, kPerRow, true};
/// Activations with a stored scale.
inline constexpr QuantKey kInt8StaticTensorSym{DType::kI8, GroupShape{}};
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
/// OCP microscaling (MX): 32 values share one power-of-two scale.
inline constexpr QuantKey kMxfp8Static{DType::kF8E4M3, per_group(32), false, true, DType::kF8E8M0};
inline constexpr QuantKey kMxfp8Dynamic{DType::kF8E4M3, per_group(32), true, true, DType::kF8E8M0};
inline constexpr QuantKey kMxfp4Static{DType::kF4E2M1, per_group(32), false, true, DType::kF8E8M0};
/// NVFP4: 16 values share one e4m3 scale, and all scales of a row one f32 number. Their product is
/// the f32 scale of the canonical form. Loading refuses scales that are no such products.
inline constexpr QuantKey kNvfp4Static{DType::kF4E2M1, per_group(16)};
/// Group scales along K. With `group` = GroupShape::kAll each channel has one scale.
constexpr QuantKey int4_static_group(int64_t group) {
  return {DType::kI4, per_group(group)};
}
constexpr QuantKey int8_static_group(int64_t group) {
  return {DType::kI8, per_group(group)};
}
/// The key with codes of a small set.
constexpr QuantKey with_codes(QuantKey key, CodeSet codes) {
  key.codes = codes;
  return key;
}
/// The key with scales of another type.
constexpr QuantKey with_scales(QuantKey key, DType scale_dtype) {
  key.scale_dtype = scale_dtype;
  return key;
}
inline constexpr QuantKey kInt4StaticGroupScale = int4_static_group(128);
inline constexpr QuantKey kInt8StaticGroupScale = int8_static_group(128);

/// Columns that share the factors of their scales and minimums, where scale_dtype is kI8.
inline constexpr int64_t kFactorCols = 256;
/// The zero point of every group there, where codes have zero points.
inline constexpr int kStepZeroPoint = -8;

/// Weight key and activation key: the arithmetic of a layer, independent of the producer. Without
/// an activation key the activations stay floating point ("weight-only").
struct Scheme {
  QuantKey weight;
  std::optional<QuantKey> activation;
  constexpr bool operator==(const Scheme&) const = default;
};

/// True if activations are int8 with one scale per row: computed from the row, or stored.
constexpr bool has_int8_rows(const Scheme& scheme) {
  return scheme.activation == kInt8DynamicTokenSym || scheme.activation == kInt8StaticTensorSym;
}

/// True for 4-bit weights beside fp8 activations, which may be folded (see WeightResidency).
bool has_residency(const Scheme& scheme);

/// The name of a scheme: "bf16", "int8-w8a8", "int4-w4a16-g128", "int8-w8a16-channel",
/// "fp8-w8a8-block128x128", "mxfp8-w8a8", "mxfp4-w4a16", "nvfp4-w4a16". "int4-w4afp8-g128" has fp8
/// activations and integer weights. The suffix "-asym" means zero points, "-min" minimums,
/// "-s16" and "-s8" scales in f16 and in 8-bit integers, "-6bit", "-5bit", "-u5bit" and "-iq4" a
/// set of codes. The suffix "-static" means activation scales stored in the file, "-token" one
/// scale per token beside fp8 weights in groups, whose activations otherwise have the same groups.
std::string name(const Scheme& scheme);
/// A description for users: "int8 weights per channel, int8 activations per token, dynamic".
std::string describe(const Scheme& scheme);
/// The inverse of name(). Also accepts variants such as "w8a8-int8". Errors list the grammar.
Result<Scheme> parse_scheme(std::string_view text);

/// A scheme to which float weights can be quantized at load time, under its common name.
struct OnlineScheme {
  /// "fp8-per-block"; the scheme's own name if it has no common name.
  std::string_view name;
  Scheme scheme;
};
std::span<const OnlineScheme> online_schemes();
/// Accepts either name: "fp8-per-block" and "fp8-w8a8-block128x128" are the same scheme. Errors
/// list all names.
Result<Scheme> parse_online_scheme(std::string_view text);

/// One matrix [n, k] in canonical form: every producer's reader makes it, every layout reads it.
/// Codes are row-major and packed from the low bits along k. Each row starts on a byte boundary.
/// Scales are f32.
///
///   value(r, c) = (code(r, c) - zero_point(r, g)) * scale(r, g) - minimum(r, g)
///   g = group_index[c], or c / group.cols
///
/// Scales, zero points and minimums are [scale_rows, scale_cols]; matrix row r uses scale row r /
/// group.rows. A per-tensor scale is stored as one equal scale per row (`key.group` = kPerRow).
/// This form lets tensors with different scales be stacked.
///
/// With key.scale_dtype kI8, each scale is an integer of 8 bits times a factor, which is an f16
/// number, and each minimum an integer of 8 bits times another one. Zero points are kStepZeroPoint.
/// Layouts may keep the integers.
struct CanonicalMatrix {
  CanonicalMatrix() = default;
  CanonicalMatrix(CanonicalMatrix&&) = default;
  CanonicalMatrix& operator=(CanonicalMatrix&&) = default;

  int64_t n = 0;
  int64_t k = 0;
  QuantKey key;
  std::span<const std::byte> codes;    ///< n * row_bytes() bytes, in `storage` or in `memory`
  std::vector<std::byte> storage;      ///< owns the codes if the reader had to convert them
  std::shared_ptr<const void> memory;  ///< owns the codes if the file holds them in canonical form
  std::vector<float> scales;           ///< empty for float dtypes
  std::vector<int8_t> zero_points;     ///< shaped like `scales`; empty: symmetric
  std::vector<float> minimums;         ///< shaped like `scales`; empty: none
  /// kI8: [n, k / kFactorCols, rounded up]; otherwise empty.
  std::vector<float> scale_factors, minimum_factors;
  std::vector<int32_t> group_index;  ///< [k]; empty: groups are contiguous, in order
  std::vector<float> bias;           ///< [n]; empty: none

  int64_t row_bytes() const { return moracle::row_bytes(key.dtype, k); }
  int64_t scale_rows() const;
  int64_t scale_cols() const;
  int64_t factor_cols() const { return (k + kFactorCols - 1) / kFactorCols; }
  /// Columns per scale; k if one scale covers the whole row.
  int64_t group_cols() const { return key.group.cols == GroupShape::kAll ? k : key.group.cols; }
};

}  // namespace MORACLE_API
