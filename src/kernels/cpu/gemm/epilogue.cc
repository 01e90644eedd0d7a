#include "kernels/cpu/gemm/epilogue.h"

#include <algorithm>

#include "kernels/cpu/simd/vector_ops.h"

namespace moracle::cpu {

void StoreEpilogue::operator()(const FinishedRows& some) const {
  for (int p = 0; p < some.pair.panels(); ++p) {
    StoreArgs f = some.result(p);
    f.to = to.at(some.row()) + some.column(p);
    f.to_stride = to.stride;
    vector_ops().store_rows(f);
  }
}

void ActivateEpilogue::operator()(const FinishedRows& some) const {
  alignas(64) float values[2][kStoreRows * kPanelRows];
  for (int p = 0; p < some.pair.panels(); ++p) {
    StoreArgs f = some.result(p);
    f.to = values[p];
    f.to_stride = kPanelRows;
    f.columns = kPanelRows;
    vector_ops().store_rows(f);
  }
  for (int p = 0; p < (gated ? 1 : some.pair.panels()); ++p) {
    vector_ops().activate(activation, values[gated ? 0 : p], values[gated ? 1 : p],
                          int64_t{some.count} * kPanelRows, values[p]);
    StoreArgs f;
    f.sum = values[p];
    f.rows = some.count;
    f.columns = static_cast<int>(std::min<int64_t>(kPanelRows, columns - some.column(p)));
    f.to = to.at(some.row()) + some.column(p);
    f.to_stride = to.stride;
    vector_ops().store_rows(f);
  }
}

void CombineEpilogue::operator()(const FinishedRows& some) const {
  float some_weights[kStoreRows];
  for (int r = 0; weights != nullptr && r < some.count; ++r)
    some_weights[r] = weights[slot[some.row() + r]];
  for (int p = 0; p < some.pair.panels(); ++p) {
    StoreArgs f = some.result(p);
    f.to = to.data + some.column(p);
    f.to_stride = to.stride;
    f.to_row = to.row + some.row();
    f.add = true;
    f.weight = weights == nullptr ? nullptr : some_weights;
    vector_ops().store_rows(f);
  }
}

}  // namespace moracle::cpu
