#include "kernels/opencl/device/opencl_check.h"

#include <string_view>

#include "base/text.h"

namespace moracle::opencl {
namespace {

struct Named {
  cl_int code;
  const char* name;
};
#define MORACLE_CODE(code) {code, #code},
constexpr Named kCodes[] = {
    MORACLE_CODE(CL_DEVICE_NOT_FOUND) MORACLE_CODE(CL_DEVICE_NOT_AVAILABLE) MORACLE_CODE(
        CL_COMPILER_NOT_AVAILABLE) MORACLE_CODE(CL_MEM_OBJECT_ALLOCATION_FAILURE)
        MORACLE_CODE(CL_OUT_OF_RESOURCES) MORACLE_CODE(CL_OUT_OF_HOST_MEMORY) MORACLE_CODE(
            CL_PROFILING_INFO_NOT_AVAILABLE) MORACLE_CODE(CL_MEM_COPY_OVERLAP)
            MORACLE_CODE(CL_BUILD_PROGRAM_FAILURE) MORACLE_CODE(CL_MAP_FAILURE) MORACLE_CODE(
                CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST) MORACLE_CODE(CL_INVALID_VALUE)
                MORACLE_CODE(CL_INVALID_DEVICE) MORACLE_CODE(CL_INVALID_CONTEXT) MORACLE_CODE(
                    CL_INVALID_QUEUE_PROPERTIES) MORACLE_CODE(CL_INVALID_COMMAND_QUEUE)
                    MORACLE_CODE(CL_INVALID_MEM_OBJECT) MORACLE_CODE(CL_INVALID_BINARY)
                        MORACLE_CODE(CL_INVALID_BUILD_OPTIONS) MORACLE_CODE(
                            CL_INVALID_PROGRAM) MORACLE_CODE(CL_INVALID_PROGRAM_EXECUTABLE)
                            MORACLE_CODE(CL_INVALID_KERNEL_NAME) MORACLE_CODE(
                                CL_INVALID_KERNEL) MORACLE_CODE(CL_INVALID_ARG_INDEX)
                                MORACLE_CODE(CL_INVALID_ARG_VALUE) MORACLE_CODE(
                                    CL_INVALID_ARG_SIZE) MORACLE_CODE(CL_INVALID_KERNEL_ARGS)
                                    MORACLE_CODE(CL_INVALID_WORK_DIMENSION) MORACLE_CODE(
                                        CL_INVALID_WORK_GROUP_SIZE)
                                        MORACLE_CODE(CL_INVALID_WORK_ITEM_SIZE) MORACLE_CODE(
                                            CL_INVALID_GLOBAL_OFFSET)
                                            MORACLE_CODE(CL_INVALID_EVENT_WAIT_LIST) MORACLE_CODE(
                                                CL_INVALID_EVENT) MORACLE_CODE(CL_INVALID_OPERATION)
                                                MORACLE_CODE(CL_INVALID_BUFFER_SIZE)
                                                    MORACLE_CODE(CL_INVALID_GLOBAL_WORK_SIZE)};
#undef MORACLE_CODE

}  // namespace

std::string name_of(cl_int code) {
  for (const Named& known : kCodes) {
    if (known.code == code) return known.name;
  }
  return str("error ", code);
}

Status check(cl_int code, const char* call) {
  if (code == CL_SUCCESS) return {};
  std::string_view text = call;
  text = text.substr(0, text.find('('));
  if (const size_t dot = text.find_last_of(".>"); dot != text.npos) text.remove_prefix(dot + 1);
  const bool memory = code == CL_MEM_OBJECT_ALLOCATION_FAILURE || code == CL_OUT_OF_HOST_MEMORY ||
                      code == CL_OUT_OF_RESOURCES;
  return Error{memory ? ErrorKind::kOutOfMemory : ErrorKind::kIo, "", "opencl",
               str(text, " to succeed"), name_of(code)};
}

}  // namespace moracle::opencl
