#include "oracle/workspace.h"

#include "layout/layout.h"
#include "oracle/backend.h"
#include "oracle/carve.h"
#include "quant/activation.h"

namespace moracle {
namespace {

// Carves scratch for the input of one matrix, with the number of columns that its layout reads.
Rows take_rows(Carver& carver, const Plan& plan, const MatrixPlan& matrix, int64_t rows) {
  Rows room;
  room.values =
      carver.take_matrix(matrix.input_dtype, rows, plan.backend->layout->read_cols(matrix.shape));
  if (plan.layer.scheme.activation) {
    room.num_scales = num_groups(*plan.layer.scheme.activation, matrix.shape.k);
    room.scales = carver.take<float>(rows * room.num_scales);
  }
  return room;
}

Rows take_sorted(Carver& carver, const Plan& plan, const MatrixPlan& matrix, int64_t rows) {
  return take_rows(carver, plan, matrix, gathers(plan, matrix) ? rows : 0);
}

}  // namespace

bool gathers(const Plan& plan, const MatrixPlan& matrix) {
  return plan.backend->layout->sorts_columns && matrix.shape.group_index;
}

MoeScratch carve_moe(const Plan& plan, std::byte* base) {
  const LayerSpec& layer = plan.layer;
  const MatrixPlan &w13 = plan.matrices[0], &w2 = plan.matrices[1];
  const DType dtype = plan.activation_dtype;
  const int64_t tokens = plan.max_slots(), rows = tokens * plan.top_k();
  Carver carver(base);
  MoeScratch rooms;
  rooms.hidden = carver.take_matrix(dtype, tokens, layer.hidden_size);
  rooms.input = take_rows(carver, plan, w13, is_static(layer.scheme) ? rows : tokens);
  rooms.rows = {carver.take<int32_t>(plan.experts.num_local() + 1), carver.take<int32_t>(rows),
                carver.take<int32_t>(rows), carver.take<int32_t>(rows)};
  rooms.gate_up =
      carver.take_matrix(dtype, w13.kernel->activates ? 0 : plan.chunk_rows, layer.w13_rows());
  // With float activations GEMM 2 reads the activation's output in place, including padding.
  const bool in_place = !layer.scheme.activation;
  rooms.activated = carver.take_matrix(
      dtype, plan.chunk_rows,
      in_place ? plan.backend->layout->read_cols(w2.shape) : layer.intermediate_size);
  if (!in_place) rooms.intermediate = take_rows(carver, plan, w2, plan.chunk_rows);
  rooms.sorted_input = take_sorted(carver, plan, w13, plan.chunk_rows);
  rooms.sorted_intermediate = take_sorted(carver, plan, w2, plan.chunk_rows);
  rooms.y = carver.take_matrix(dtype, w2.kernel->combines ? tokens : rows, layer.hidden_size);
  rooms.bytes = carver.bytes();
  return rooms;
}

AdapterScratch carve_adapters(const Plan& plan, std::byte* base) {
  const int64_t pairs = plan.max_adapters * plan.experts.num_local(), rank = plan.lora_rank;
  const int64_t hidden = plan.layer.hidden_size, intermediate = plan.layer.intermediate_size;
  const int64_t w13_rows = plan.layer.w13_rows(), w13_slices = w13_rows / intermediate;
  Carver carver(base);
  auto take = [&](int64_t rows, int64_t cols) {
    return carver.take_matrix(plan.activation_dtype, pairs * rows, cols);
  };
  AdapterScratch rooms;
  rooms.w13_a = take(w13_slices * rank, hidden);
  rooms.w13_b = take(w13_rows, rank);
  rooms.w2_a = take(rank, intermediate);
  rooms.w2_b = take(hidden, rank);
  rooms.bytes = carver.bytes();
  return rooms;
}

LinearScratch carve_linear(const Plan& plan, std::byte* base) {
  Carver carver(base);
  LinearScratch rooms;
  rooms.input = take_rows(carver, plan, plan.matrices[0], plan.max_num_tokens);
  rooms.sorted_input = take_sorted(carver, plan, plan.matrices[0], plan.max_num_tokens);
  rooms.bytes = carver.bytes();
  return rooms;
}

}  // namespace moracle
