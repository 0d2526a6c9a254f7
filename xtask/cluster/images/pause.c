/* The process that holds a pod's namespaces: reaps what is left to it, ends at a signal. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void end(int s) { (void)s; _exit(0); }
static void reap(int s) { (void)s; while (waitpid(-1, 0, WNOHANG) > 0) {} }
int main(void) {
    struct sigaction a = {0};
    a.sa_handler = end; sigaction(SIGINT, &a, 0); sigaction(SIGTERM, &a, 0);
    a.sa_handler = reap; a.sa_flags = SA_NOCLDSTOP; sigaction(SIGCHLD, &a, 0);
    for (;;) pause();
}
