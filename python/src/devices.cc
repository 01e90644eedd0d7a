#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/threads/usable_cpus.h"
#include "bindings.h"
#include "frameworks.h"
#include "openmp.h"

namespace moracle::python {
namespace {

const pid_t importer = getpid();

using Handle = Owned<std::shared_ptr<Device>>;

// A mask of one CPU is rarely wanted: engines bind their main thread, and torch's OpenMP does.
void warn_of_narrow_mask(const std::string& name, const DeviceOptions& options) {
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  const std::vector<int> mask = affinity_cpus();
  if (name != "cpu" || options.threads != 0 || !options.cpus.empty() || options.run_tasks ||
      mask.size() != 1 || online < 2)
    return;
  const std::string text =
      "device cpu has one thread, because the calling thread is bound to CPU " +
      std::to_string(mask[0]) + " of " + std::to_string(online) +
      "; Device(cpus=[...]) opens it on others";
  if (PyErr_WarnEx(PyExc_RuntimeWarning, text.c_str(), 1) != 0) throw nb::python_error();
}

std::shared_ptr<Device> open(const std::string& name, const DeviceOptions& options) {
  check_not_forked();
  warn_of_narrow_mask(name, options);
  const nb::gil_scoped_release released;
  return value_of(open_device(name, options));
}

void use_openmp(DeviceOptions& options) {
  OpenMp openmp = value_of(openmp_here());
  if (options.threads == 0) options.threads = openmp.threads;
  options.run_tasks = std::move(openmp.run_tasks);
}

void synchronize(const Handle& self, nb::handle stream) {
  const Stream on = stream_of(stream, nb::none(), **self);
  const nb::gil_scoped_release released;
  value_of((*self)->synchronize(on));
}

}  // namespace

bool is_forked() {
  return getpid() != importer;
}

void check_not_forked() {
  if (!is_forked()) return;
  throw Failure({ErrorKind::kUnsupported, "", "process",
                 "a process that imported moracle itself: start workers with the method 'spawn', "
                 "or import moracle after the fork",
                 "this process was forked after the import, and threads do not survive a fork"});
}

std::shared_ptr<Device> device_of(nb::handle device) {
  if (nb::isinstance<Handle>(device)) return *nb::cast<const Handle&>(device);
  if (!nb::isinstance<nb::str>(device)) {
    fail_argument("device", "a Device or its name",
                  "it is " + nb::cast<std::string>(nb::repr(device)));
  }
  // Layers on one device share its threads while any of them is alive.
  static std::map<std::pair<Platform, int>, std::weak_ptr<Device>> opened;
  const std::string name = utf8_of(device, "device");
  const DeviceName parsed = value_of(parse_device(name));
  std::weak_ptr<Device>& kept = opened[{parsed.platform, parsed.index}];
  std::shared_ptr<Device> shared = kept.lock();
  if (!shared) kept = shared = open(name, {});
  return shared;
}

std::shared_ptr<Workspace> workspace_of(const std::shared_ptr<Device>& device) {
  static std::map<std::weak_ptr<Device>, std::weak_ptr<Workspace>, std::owner_less<>> workspaces;
  std::erase_if(workspaces, [](const auto& entry) { return entry.second.expired(); });
  std::shared_ptr<Workspace> shared = workspaces[device].lock();
  if (!shared) workspaces[device] = shared = std::make_shared<Workspace>(device);
  return shared;
}

void bind_device(nb::module_& m) {
  m.def(
      "has_cuda",
      [] {
        const nb::gil_scoped_release released;
        const Machine machine = Machine::here();
        return std::any_of(machine.gpus.begin(), machine.gpus.end(),
                           [](const GpuInfo& gpu) { return gpu.platform == Platform::kCuda; });
      },
      "True if this package is built for NVIDIA GPUs and this machine has one with a driver.");
  nb::class_<Handle>(m, "Device", "Memory and an ordered queue of work: the CPU, or one GPU.")
      .def(
          "__init__",
          [](Handle* self, const nb::str& name, int threads, bool pin, std::vector<int> cpus,
             bool openmp) {
            DeviceOptions options{.threads = threads, .pin = pin};
            options.cpus = std::move(cpus);
            if (openmp) use_openmp(options);
            new (self) Handle(open(utf8_of(name, "name"), options));
          },
          nb::arg("name") = "cpu", nb::kw_only(), nb::arg("threads") = 0, nb::arg("pin") = false,
          nb::arg("cpus") = std::vector<int>(), nb::arg("openmp") = false,
          nb::sig("def __init__(self, name: str = 'cpu', *, threads: int = 0, pin: bool = False, "
                  "cpus: collections.abc.Sequence[int] = (), openmp: bool = False) -> None"),
          "Opens \"cpu\", \"cuda[:n]\" or \"opencl[:n]\". `threads`: host threads; 0: all CPUs "
          "that the process may use. `pin`: one CPU for each thread. `cpus`: the CPUs of all "
          "threads except the calling one, which may be bound to fewer. `openmp`: the threads of "
          "the "
          "OpenMP runtime that torch uses, in place of own ones. Two teams on the same CPUs wait "
          "for "
          "each other: idle threads of OpenMP spin for milliseconds.")
      .def_prop_ro("name", [](const Handle& self) { return (*self)->name(); })
      .def_prop_ro(
          "platform",
          [](const Handle& self) { return std::string(moracle::name((*self)->platform())); },
          "\"cpu\", \"cuda\" or \"opencl\"")
      .def_prop_ro(
          "activation_dtype",
          [](const Handle& self) {
            return std::string(moracle::name((*self)->activation_dtype()));
          },
          "The dtype of activations between kernels: \"f32\" on a CPU.")
      .def_static(
          "shared", [](const nb::str& name) { return Handle(device_of(name)); }, nb::arg("name"),
          "The device that all layers made with this name share.")
      .def(
          "synchronize", &synchronize, nb::kw_only(), nb::arg("stream") = nb::none(),
          nb::sig("def synchronize(self, *, stream: int | None = None) -> None"),
          "Waits until the work on `stream` is done: an integer handle, by default torch's current "
          "stream on an NVIDIA GPU. Errors: those of kernels, such as the id of an expert that "
          "does not exist.")
      .def("__repr__", [](const Handle& self) { return "<Device " + (*self)->name() + ">"; });
}

}  // namespace moracle::python
