// The key of top_k_key.h. It compares integers, because not every device keeps denormal floats.
ulong top_k_key(uint bits, uint index) {
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    bits = 0xffffffffu;
  else if (bits >> 31 && bits != 0x80000000u)
    bits = ~bits;
  else
    bits |= 0x80000000u;  // -0 is as large as 0
  return (ulong)bits << 32 | (uint)~index;
}
