module event_scheduler #(
    parameter MAX_EVENTS = 16,
    parameter TIMESTAMP_WIDTH = 16,
    parameter PRIORITY_WIDTH = 4,
    parameter TIME_INCREMENT = 10
) (
    input  logic                       clk,
    input  logic                       reset,
    input  logic                       add_event,
    input  logic                       cancel_event,
    input  logic                       modify_event,
    input  logic [3:0]                 event_id,
    input  logic [TIMESTAMP_WIDTH-1:0] timestamp,
    input  logic [PRIORITY_WIDTH-1:0]  priority_in,
    input  logic [TIMESTAMP_WIDTH-1:0] new_timestamp,
    input  logic [PRIORITY_WIDTH-1:0]  new_priority,
    input  logic                       recurring_event,
    input  logic [TIMESTAMP_WIDTH-1:0] recurring_interval,
    output logic                       event_triggered,
    output logic [3:0]                 triggered_event_id,
    output logic                       error,
    output logic [TIMESTAMP_WIDTH-1:0] current_time,
    output logic [TIMESTAMP_WIDTH-1:0] log_event_time,
    output logic [3:0]                 log_event_id
);
    logic [TIMESTAMP_WIDTH-1:0] event_timestamps [0:MAX_EVENTS-1], tmp_event_timestamps [0:MAX_EVENTS-1];
    logic [PRIORITY_WIDTH-1:0]  event_priorities [0:MAX_EVENTS-1], tmp_event_priorities [0:MAX_EVENTS-1];
    logic [TIMESTAMP_WIDTH-1:0] recurring_intervals [0:MAX_EVENTS-1], tmp_recurring_intervals [0:MAX_EVENTS-1];
    logic [MAX_EVENTS-1:0]      event_valid, tmp_event_valid, recurring_flags, tmp_recurring_flags;
    logic [TIMESTAMP_WIDTH-1:0] tmp_current_time;
    logic                       refused, due;
    logic [3:0]                 chosen_event;
    integer                     i;

    always @(posedge clk or posedge reset)
        if (reset) begin
            event_valid <= '0;
            recurring_flags <= '0;
            {event_triggered, triggered_event_id, error} <= '0;
            {current_time, log_event_time, log_event_id} <= '0;
            for (i = 0; i < MAX_EVENTS; i = i + 1) begin
                event_timestamps[i] <= '0;
                event_priorities[i] <= '0;
                recurring_intervals[i] <= '0;
            end
        end else begin
            tmp_current_time = current_time + TIME_INCREMENT;
            tmp_event_valid = event_valid;
            tmp_recurring_flags = recurring_flags;
            for (i = 0; i < MAX_EVENTS; i = i + 1) begin
                tmp_event_timestamps[i] = event_timestamps[i];
                tmp_event_priorities[i] = event_priorities[i];
                tmp_recurring_intervals[i] = recurring_intervals[i];
            end

            refused = add_event ? tmp_event_valid[event_id] : 1'b0;
            if (add_event && !refused) begin
                tmp_event_valid[event_id] = 1;
                tmp_event_timestamps[event_id] = timestamp;
                tmp_event_priorities[event_id] = priority_in;
                tmp_recurring_flags[event_id] = recurring_event;
                tmp_recurring_intervals[event_id] = recurring_interval;
            end
            if (modify_event) begin
                if (tmp_event_valid[event_id]) begin
                    tmp_event_timestamps[event_id] = new_timestamp;
                    tmp_event_priorities[event_id] = new_priority;
                    tmp_recurring_flags[event_id] = recurring_event;
                    tmp_recurring_intervals[event_id] = recurring_interval;
                end else refused = 1;
            end
            if (cancel_event) begin
                if (tmp_event_valid[event_id]) tmp_event_valid[event_id] = 0;
                else refused = 1;
            end
            // The flag tells of the last request, and stays until there is another.
            if (add_event || modify_event || cancel_event) error <= refused;

            due = 0;
            chosen_event = 0;
            for (i = 0; i < MAX_EVENTS; i = i + 1)
                if (tmp_event_valid[i] && tmp_event_timestamps[i] <= tmp_current_time
                    && (!due || tmp_event_priorities[i] > tmp_event_priorities[chosen_event])) begin
                    due = 1;
                    chosen_event = i[3:0];
                end

            event_triggered <= due;
            if (due) begin
                triggered_event_id <= chosen_event;
                log_event_id <= chosen_event;
                log_event_time <= tmp_current_time;
                if (tmp_recurring_flags[chosen_event])
                    tmp_event_timestamps[chosen_event] =
                        tmp_event_timestamps[chosen_event] + tmp_recurring_intervals[chosen_event];
                else tmp_event_valid[chosen_event] = 0;
            end

            current_time <= tmp_current_time;
            event_valid <= tmp_event_valid;
            recurring_flags <= tmp_recurring_flags;
            for (i = 0; i < MAX_EVENTS; i = i + 1) begin
                event_timestamps[i] <= tmp_event_timestamps[i];
                event_priorities[i] <= tmp_event_priorities[i];
                recurring_intervals[i] <= tmp_recurring_intervals[i];
            end
        end
endmodule
