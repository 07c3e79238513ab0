// Counts the pulses it is given as seconds, up to one hour, where it stays. Its own pulses follow a clock behind.
module dig_stopwatch (
    input  logic       clk,
    input  logic       reset,
    input  logic       one_sec_pulse,
    output logic [5:0] seconds,
    output logic [5:0] minutes,
    output logic       hour,
    output logic       second_pulse,
    output logic       minute_pulse,
    output logic       hour_pulse,
    output logic       beep
);
    wire minute_over = seconds == 59;
    wire hour_over = minute_over && minutes == 59;
    wire step = one_sec_pulse && !hour;
    logic [2:0] changed;

    always_ff @(posedge clk or posedge reset)
        if (reset) {seconds, minutes, hour, changed, second_pulse, minute_pulse, hour_pulse, beep} <= 0;
        else begin
            changed <= {step && hour_over, step && minute_over, step};
            {hour_pulse, minute_pulse, second_pulse} <= changed;
            if (hour_pulse) beep <= 1;
            else if (one_sec_pulse) beep <= 0;
            if (step) begin
                seconds <= minute_over ? 0 : seconds + 1;
                if (minute_over) minutes <= hour_over ? 0 : minutes + 1;
                if (hour_over) hour <= 1;
            end
        end
endmodule
