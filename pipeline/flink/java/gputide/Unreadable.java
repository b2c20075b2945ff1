package gputide;

/** A record of the bus that can't be read; its message says why, and ends as a dead letter. */
final class Unreadable extends Exception {
    private static final long serialVersionUID = 1L;

    Unreadable(String why) {
        super(why, null, false, false);
    }
}
