#include "base/try.h"
#include "kernels/opencl/ops/opencl_ops.h"
namespace moracle {
namespace { Status todo() { return Error{ErrorKind::kUnsupported, "", "opencl", "an operation", "it is not written yet"}; } }
Status OpenClOps::route(const Matrix&, const Routing&, const float*, int64_t, int32_t*, float*, Stream) { return todo(); }
Status OpenClOps::plan_rows(const int32_t*, int64_t, int64_t, int64_t, const int32_t*, int64_t, const RowPlan&, Stream) { return todo(); }
Status OpenClOps::plan_batched_rows(const int32_t*, int64_t, int64_t, const RowPlan&, Stream) { return todo(); }
Status OpenClOps::find_top_k(const Matrix&, int64_t, int32_t*, float*, std::byte*, Stream) { return todo(); }
}
