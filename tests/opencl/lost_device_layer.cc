// An OpenCL layer that takes the device away: after LOSE_AFTER starts of kernels, starts, copies
// and waits fail. The loader puts it between the program and the driver (environment:
// OPENCL_LAYERS).
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl_layer.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

cl_icd_dispatch below;  // of the driver
cl_icd_dispatch ours;
std::atomic<int> starts{0};

bool lost() {
  static const char* const after = std::getenv("LOSE_AFTER");
  return after != nullptr && starts > std::atoi(after);
}

cl_int CL_API_CALL start(cl_command_queue queue, cl_kernel kernel, cl_uint dims,
                         const size_t* offset, const size_t* global, const size_t* local,
                         cl_uint num_events, const cl_event* events, cl_event* event) {
  ++starts;
  if (lost()) return CL_DEVICE_NOT_AVAILABLE;
  return below.clEnqueueNDRangeKernel(queue, kernel, dims, offset, global, local, num_events,
                                      events, event);
}

cl_int CL_API_CALL copy(cl_command_queue queue, cl_bool blocking, void* to, const void* from,
                        size_t bytes, cl_uint num_events, const cl_event* events, cl_event* event) {
  if (lost()) return CL_DEVICE_NOT_AVAILABLE;
  return below.clEnqueueSVMMemcpy(queue, blocking, to, from, bytes, num_events, events, event);
}

// The driver's device still runs what started before the loss, and memory may be freed after this.
cl_int CL_API_CALL finish(cl_command_queue queue) {
  const cl_int ended = below.clFinish(queue);
  return lost() ? CL_DEVICE_NOT_AVAILABLE : ended;
}

}  // namespace

extern "C" {

CL_API_ENTRY cl_int CL_API_CALL clGetLayerInfo(cl_layer_info name, size_t room, void* value,
                                               size_t* bytes) {
  if (name != CL_LAYER_API_VERSION) return CL_INVALID_VALUE;
  const cl_layer_api_version version = CL_LAYER_API_VERSION_100;
  if (value != nullptr && room < sizeof version) return CL_INVALID_VALUE;
  if (value != nullptr) std::memcpy(value, &version, sizeof version);
  if (bytes != nullptr) *bytes = sizeof version;
  return CL_SUCCESS;
}

CL_API_ENTRY cl_int CL_API_CALL clInitLayer(cl_uint num_entries, const cl_icd_dispatch* target,
                                            cl_uint* num_entries_of_layer,
                                            const cl_icd_dispatch** layer) {
  constexpr cl_uint kEntries = sizeof(cl_icd_dispatch) / sizeof(void*);
  if (num_entries < kEntries) return CL_INVALID_VALUE;
  below = *target;
  ours = *target;
  ours.clEnqueueNDRangeKernel = start;
  ours.clEnqueueSVMMemcpy = copy;
  ours.clFinish = finish;
  std::fputs("lost_device_layer is loaded\n", stderr);
  *num_entries_of_layer = kEntries;
  *layer = &ours;
  return CL_SUCCESS;
}

}  // extern "C"
