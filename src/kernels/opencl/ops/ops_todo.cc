#include "kernels/opencl/ops/opencl_ops.h"
#include "base/try.h"
namespace moracle {
namespace { Status todo() { return Error{ErrorKind::kUnsupported, "", "opencl", "an operation", "it is not written yet"}; } }
Status OpenClOps::quantize(const Matrix&, const QuantKey&, const Rows&, Stream) { return todo(); }
Status OpenClOps::quantize_static(const Matrix&, const int32_t*, const int32_t*, int64_t, const float*, const QuantKey&, const Rows&, Stream) { return todo(); }
Status OpenClOps::gather_columns(const GroupedRows&, const ColumnOrders&, const Rows&, Stream) { return todo(); }
Status OpenClOps::add_lora(const Matrix&, const int32_t*, const RowPlan&, const int32_t*, int64_t, const LoraTable&, const Matrix&, Stream) { return todo(); }
Status OpenClOps::activate(const ActivationSpec&, int64_t, const Matrix&, const Matrix&, Stream) { return todo(); }
// B
Status OpenClOps::route(const Matrix&, const Routing&, const float*, int64_t, int32_t*, float*, Stream) { return todo(); }
Status OpenClOps::plan_rows(const int32_t*, int64_t, int64_t, int64_t, const int32_t*, int64_t, const RowPlan&, Stream) { return todo(); }
Status OpenClOps::plan_batched_rows(const int32_t*, int64_t, int64_t, const RowPlan&, Stream) { return todo(); }
Status OpenClOps::find_top_k(const Matrix&, int64_t, int32_t*, float*, std::byte*, Stream) { return todo(); }
}
