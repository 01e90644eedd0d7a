// Devices and their memory.
#include "base/try.h"
#include "c_api/handles.h"
#include "c_api/structs.h"

namespace moracle::c_api {
namespace {

// The options of an engine. The functions live as long as the device's memory.
void set_engine_options(const moracle_device_options& from, DeviceOptions& options) {
  void* const engine = from.engine;
  if (from.allocate != nullptr)
    options.allocate = [=, call = from.allocate](size_t bytes) { return call(engine, bytes); };
  if (from.free != nullptr)
    options.free = [=, call = from.free](void* data, size_t bytes) { call(engine, data, bytes); };
  if (from.run_tasks == nullptr) return;
  options.run_tasks = [=, call = from.run_tasks](int count, const std::function<void(int)>& task) {
    const moracle_task one = [](void* context, int32_t index) {
      (*static_cast<const std::function<void(int)>*>(context))(index);
    };
    call(engine, count, one, const_cast<std::function<void(int)>*>(&task));
  };
}

Result<moracle_device*> open_device_for(const char* name, const moracle_device_options* from) {
  MORACLE_TRY(const moracle_device_options wanted, read_optional_struct(from, "options"));
  DeviceOptions options;
  options.threads = wanted.threads;
  options.pin = wanted.pin != 0;
  if (wanted.kernel_cache != nullptr) options.kernel_cache = wanted.kernel_cache;
  set_engine_options(wanted, options);
  MORACLE_TRY(std::shared_ptr<Device> device, open_device(name == nullptr ? "cpu" : name, options));
  auto workspace = std::make_shared<Workspace>(device);
  std::string own_name = device->name();
  return new moracle_device{std::move(device), std::move(workspace), std::move(own_name)};
}

Status check_copy(const moracle_device* device, const void* to, const void* from, size_t bytes) {
  MORACLE_CHECK(check_given(device, "device"));
  if (bytes == 0) return {};
  MORACLE_CHECK(check_given(to, "to"));
  return check_given(from, "from");
}

Status upload(moracle_device* device, void* to, const void* from, size_t bytes, void* stream) {
  MORACLE_CHECK(check_copy(device, to, from, bytes));
  return bytes == 0 ? Status() : device->value->upload(to, from, bytes, {stream});
}

Status download(moracle_device* device, void* to, const void* from, size_t bytes, void* stream) {
  MORACLE_CHECK(check_copy(device, to, from, bytes));
  return bytes == 0 ? Status() : device->value->download(to, from, bytes, {stream});
}

Status synchronize(moracle_device* device, void* stream) {
  MORACLE_CHECK(check_given(device, "device"));
  return device->value->synchronize({stream});
}

Result<moracle_buffer*> allocate(moracle_device* device, size_t bytes) {
  MORACLE_CHECK(check_given(device, "device"));
  MORACLE_TRY(Buffer buffer, device->value->allocate(bytes));
  return new moracle_buffer{std::move(buffer)};
}

}  // namespace
}  // namespace moracle::c_api

namespace c_api = moracle::c_api;

moracle_status moracle_device_open(const char* name, const moracle_device_options* options,
                                   moracle_device** out, moracle_error** error) {
  return c_api::guarded(out, error, [&] { return c_api::open_device_for(name, options); });
}
const char* moracle_device_name(const moracle_device* device) {
  return device == nullptr ? nullptr : device->name.c_str();
}
moracle_dtype moracle_device_activation_dtype(const moracle_device* device) {
  return device == nullptr ? -1 : static_cast<moracle_dtype>(device->value->activation_dtype());
}
moracle_status moracle_device_synchronize(moracle_device* device, void* stream,
                                          moracle_error** error) {
  return c_api::guarded(error, [&] { return c_api::synchronize(device, stream); });
}
moracle_status moracle_device_upload(moracle_device* device, void* to, const void* from,
                                     size_t bytes, void* stream, moracle_error** error) {
  return c_api::guarded(error, [&] { return c_api::upload(device, to, from, bytes, stream); });
}
moracle_status moracle_device_download(moracle_device* device, void* to, const void* from,
                                       size_t bytes, void* stream, moracle_error** error) {
  return c_api::guarded(error, [&] { return c_api::download(device, to, from, bytes, stream); });
}
void moracle_device_free(moracle_device* device) {
  delete device;
}

moracle_status moracle_buffer_allocate(moracle_device* device, size_t bytes, moracle_buffer** out,
                                       moracle_error** error) {
  return c_api::guarded(out, error, [&] { return c_api::allocate(device, bytes); });
}
void* moracle_buffer_data(const moracle_buffer* buffer) {
  return buffer == nullptr ? nullptr : buffer->value.data();
}
void moracle_buffer_free(moracle_buffer* buffer) {
  delete buffer;
}
