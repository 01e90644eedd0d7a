// Finds experts of rows.

// The expert of row r from offsets [num_experts + 1], or num_experts if no expert has it.
long expert_of(global const int *offsets, long num_experts, long r) {
  long low = 0, high = num_experts;  // find the first e with r < offsets[e + 1]
  while (low < high) {
    const long middle = (low + high) / 2;
    if (r < offsets[middle + 1])
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}
