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
// C
Status OpenClOps::embed(const TensorView&, const int32_t*, const Matrix&, Stream) { return todo(); }
Status OpenClOps::rms_norm(const Matrix&, const float*, int64_t, float, const Matrix&, Stream) { return todo(); }
Status OpenClOps::add(const Matrix&, const Matrix&, Stream) { return todo(); }
Status OpenClOps::rotate(const Matrix&, const RotaryShape&, const float*, const int32_t*, Stream) { return todo(); }
Status OpenClOps::copy_heads(const Matrix&, int64_t, const Matrix&, int64_t, int64_t, int64_t, Stream) { return todo(); }
Status OpenClOps::append(const Matrix&, const Matrix&, const Batch&, const LayerCache&, Stream) { return todo(); }
Status OpenClOps::attend(const Matrix&, const Batch&, const AttentionShape&, const Matrix&, std::byte*, Stream) { return todo(); }
}
