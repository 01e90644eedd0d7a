// The module libmoracle_mpi.so: MPI behind MpiApi. Every call is nonblocking.
#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "parallel/mpi/mpi_api.h"

namespace {

// A message is at most this long: MPI counts with int.
constexpr size_t kMessageBytes = size_t{1} << 30;

// The pieces of one message. Finished slots are reused.
std::vector<std::vector<MPI_Request>> pending;

// What messages travel on.
MPI_Comm world = MPI_COMM_WORLD;

int take_slot() {
  for (size_t i = 0; i < pending.size(); ++i)
    if (pending[i].empty()) return static_cast<int>(i);
  pending.emplace_back();
  return static_cast<int>(pending.size()) - 1;
}

template <class Start>
int start_messages(size_t bytes, int* request, const Start& start_message) {
  const int slot = take_slot();
  *request = slot;
  for (size_t at = 0; at < bytes; at += kMessageBytes) {
    MPI_Request message = MPI_REQUEST_NULL;
    const int code =
        start_message(at, static_cast<int>(std::min(kMessageBytes, bytes - at)), &message);
    if (code != MPI_SUCCESS) return code;
    pending[static_cast<size_t>(slot)].push_back(message);
  }
  return MPI_SUCCESS;
}

int start(int* rank, int* size) {
  int provided = 0;
  if (const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
      code != MPI_SUCCESS) {
    return code;
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, rank);
  MPI_Comm_size(MPI_COMM_WORLD, size);
  return provided >= MPI_THREAD_SERIALIZED ? MPI_SUCCESS : MPI_ERR_OTHER;
}

int join(const void* communicator, moracle::MpiRanks* ranks) {
  int started = 0, provided = 0;
  MPI_Initialized(&started);
  if (started != 0) MPI_Query_thread(&provided);
  ranks->refused = started == 0                       ? "MPI is not started"
                   : provided < MPI_THREAD_SERIALIZED ? "MPI is started with fewer threads"
                   : world != MPI_COMM_WORLD          ? "another group of this process is open"
                                                      : nullptr;
  if (ranks->refused != nullptr) return MPI_SUCCESS;
  MPI_Comm copy = MPI_COMM_NULL, host = MPI_COMM_NULL;
  if (const int code = MPI_Comm_dup(*static_cast<const MPI_Comm*>(communicator), &copy);
      code != MPI_SUCCESS) {
    return code;
  }
  MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN);
  MPI_Comm_rank(copy, &ranks->rank);
  MPI_Comm_size(copy, &ranks->size);
  if (const int code =
          MPI_Comm_split_type(copy, MPI_COMM_TYPE_SHARED, ranks->rank, MPI_INFO_NULL, &host);
      code != MPI_SUCCESS) {
    return code;
  }
  MPI_Comm_rank(host, &ranks->local_rank);
  MPI_Comm_size(host, &ranks->local_size);
  MPI_Comm_free(&host);
  world = copy;
  return MPI_SUCCESS;
}

int leave() {
  if (world == MPI_COMM_WORLD) return MPI_SUCCESS;
  const int code = MPI_Comm_free(&world);
  world = MPI_COMM_WORLD;
  return code;
}

int start_send(const void* data, size_t bytes, int to, int tag, int* request) {
  return start_messages(bytes, request, [&](size_t at, int count, MPI_Request* message) {
    return MPI_Isend(static_cast<const char*>(data) + at, count, MPI_BYTE, to, tag, world, message);
  });
}

int start_receive(void* data, size_t bytes, int from, int tag, int* request) {
  return start_messages(bytes, request, [&](size_t at, int count, MPI_Request* message) {
    return MPI_Irecv(static_cast<char*>(data) + at, count, MPI_BYTE, from, tag, world, message);
  });
}

int test(int request, int* done) {
  std::vector<MPI_Request>& messages = pending[static_cast<size_t>(request)];
  const int code =
      MPI_Testall(static_cast<int>(messages.size()), messages.data(), done, MPI_STATUSES_IGNORE);
  if (code == MPI_SUCCESS && *done != 0) messages.clear();
  return code;
}

int probe(int tag, int* there, int* from, size_t* bytes) {
  MPI_Status status;
  const int code = MPI_Iprobe(MPI_ANY_SOURCE, tag, world, there, &status);
  if (code != MPI_SUCCESS || *there == 0) return code;
  int count = 0;
  MPI_Get_count(&status, MPI_BYTE, &count);
  *from = status.MPI_SOURCE;
  *bytes = static_cast<size_t>(count);
  return code;
}

int finish() {
  return MPI_Finalize();
}

void error_text(int code, char* to, size_t bytes) {
  char text[MPI_MAX_ERROR_STRING] = "unknown error";
  int length = 0;
  MPI_Error_string(code, text, &length);
  std::strncpy(to, text, bytes - 1);
  to[bytes - 1] = '\0';
}

const char* library_text() {
  static char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  // Only the name: the rest lists how it was built.
  if (char* const end = std::strchr(text, ',')) *end = '\0';
  return text;
}

}  // namespace

extern "C" const moracle::MpiApi* moracle_mpi_api() {
  static const moracle::MpiApi api{moracle::MpiApi::kVersion,
                                   library_text(),
                                   start,
                                   join,
                                   leave,
                                   start_send,
                                   start_receive,
                                   test,
                                   probe,
                                   finish,
                                   error_text};
  return &api;
}
