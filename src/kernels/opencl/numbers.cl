// 4-bit floats as numbers, by the definition of base/scalar.h.

float e2m1_to_float(uchar bits) {
  // The exponent's bias is 126 below that of a float: a multiplication moves it, subnormal numbers included.
  return as_float((uint)(bits & 8u) << 28 | (uint)(bits & 7u) << 22) * 0x1p126f;
}
