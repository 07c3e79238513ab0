module dig_stopwatch_tb;
    logic       clk = 0, reset = 1, start_stop = 0;
    wire  [5:0] seconds, minutes;

    dig_stopwatch_top #(.CLK_FREQ(4)) dut (
        .clk(clk), .reset(reset), .start_stop(start_stop), .seconds(seconds), .minutes(minutes), .hour(),
        .second_pulse(), .minute_pulse(), .hour_pulse(), .beep()
    );

    always #5 clk = !clk;

    initial begin
        repeat (2) @(negedge clk);
        {reset, start_stop} = 2'b01;
        repeat (4 * 61) @(negedge clk);
        if (minutes !== 1 || seconds !== 1) $error("%0d:%0d after 61 seconds", minutes, seconds);
        $finish;
    end
endmodule
