#include "activation.cl"
#include "elements.cl"

// `size`: columns of the result; `up`: first column of the up projection, 0 without a gate.
kernel void activate(const int function, const float alpha, const float beta, const float limit, const long size,
                     const long up, MATRIX(gate_up), MATRIX(out), const long rows, const long cols) {
  FOR_EACH_ELEMENT(r, c, rows, cols) {
    const float value =
        c < size ? activated(function, alpha, beta, limit, LOAD(gate_up, r, c), LOAD(gate_up, r, up + c)) : 0.0f;
    STORE(out, r, c, value);
  }
}
