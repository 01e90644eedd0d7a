// Process setup for the verbs: signals, closed streams, uncaught exceptions.
#pragma once

namespace moracle::cli {

/// After this call, Ctrl-C and SIGTERM are counted. Writing to a closed pipe or beyond a limit
/// becomes an error of the write.
void catch_signals();

/// From this call on, Ctrl-C ends an answer and not the process: interrupted() is true until
/// forget_ctrl_c(). The process ends after four in a row. SIGTERM keeps its meaning.
void let_ctrl_c_stop_answers();
/// Returns whether Ctrl-C was pressed since the last call.
bool forget_ctrl_c();

/// Opens the standard streams that the process was started without, so that reads and writes fail.
/// Otherwise the next opened file would take the place of a stream and receive its output.
void fill_closed_streams();

/// Runs `work` and returns its exit code. An exception that escapes it, from any thread, becomes
/// one line on stderr and exit code 1.
int run_guarded(int (*work)(int argc, char** argv), int argc, char** argv);

}  // namespace moracle::cli
