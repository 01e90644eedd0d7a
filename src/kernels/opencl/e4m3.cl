// Conversions of 8-bit floats (e4m3), bit by bit those of base/scalar.h.

float e4m3_to_float(uchar bits) {
  const uint sign = (uint)(bits & 0x80u) << 24;
  const uint exponent = (bits >> 3) & 15u, mantissa = bits & 7u;
  if ((bits & 0x7fu) == 0x7fu) return as_float(sign | 0x7fc00000u);
  if (exponent != 0) return as_float(sign | ((exponent + 120) << 23) | (mantissa << 20));
  return as_float(as_uint((float)mantissa * 0x1p-9f) | sign);
}

// Rounds to nearest, ties to even; beyond 448 saturates; NaN stays NaN.
uchar float_to_e4m3(float value) {
  const uint u = as_uint(value), magnitude = u & 0x7fffffffu, sign = u >> 24 & 0x80u;
  if (magnitude > 0x7f800000u) return (uchar)(sign | 0x7fu);
  if (magnitude >= 0x43e00000u) return (uchar)(sign | 0x7eu);  // 448 and above
  // Below 2^-6: adding 2^14 leaves multiples of 2^-9, rounded to even, in the lowest bits.
  if (magnitude < 0x3c800000u) return (uchar)(sign | (as_uint(as_float(magnitude) + 0x1p14f) - 0x46800000u));
  return (uchar)(sign | ((magnitude - 0x3c000000u + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20));
}
