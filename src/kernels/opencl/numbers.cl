// Codes of weights and activations as numbers, by the definitions of base/scalar.h. NaN codes do not reach kernels:
// reading a checkpoint rejects them.

float e4m3_to_float(uchar bits) {
  // The exponent is eight bits short of a float's: a multiplication moves it, subnormal numbers included.
  return as_float((uint)(bits & 0x80u) << 24 | (uint)(bits & 0x7fu) << 20) * 0x1p120f;
}

float e2m1_to_float(uchar bits) {
  return as_float((uint)(bits & 8u) << 28 | (uint)(bits & 7u) << 22) * 0x1p126f;
}
