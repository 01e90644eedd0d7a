// The parts of Boost.Asio and Boost.Beast that are not templates.
#ifdef MORACLE_WITH_HTTP
#include <boost/asio/impl/src.hpp>
#include <boost/beast/src.hpp>
#endif
